"""A service that responds in its own way where a listing has no forms."""

import json

from fsm_provider.testing import faults

ANSWERS = {
    "404": faults.Status(404, body={"message": "no forms"}),
    "204": faults.Status(204),
    "null": faults.Status(200, body=None),
    "{}": faults.Status(200, body={}),
}
SETTING = {"404": "404", "204": "empty", "null": "empty", "{}": "empty"}


class NoForms:
    """Plays a fault where the correct response has no records."""

    def __init__(self, answer):
        self.answer = answer

    async def play(self, exchange):
        correct = await exchange.handle()
        if correct.status == 200 and not json.loads(correct.body)["data"]:
            await self.answer.play(exchange)
        else:
            await exchange.respond(correct)
