"""A simulated engineer, who completes jobs and their forms some time after a job was created."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from fsm_provider.testing.form_pdf import USUAL, FormPdf
from fsm_provider.testing.schedule import Schedule
from fsm_provider.testing.state import ServiceState


@dataclass(frozen=True)
class Engineer:
    """Which forms are completed against every new job, and when.

    After half the time to its first form, the ``status`` of a job is ``In Progress``, and after its
    last form ``Completed``; the specification shows only ``Open``.

    :param after: seconds from the creation of a job to its first form.
    :param form_names: the forms completed against each job, in this order.
    :param every: seconds from one form of a job to its next.
    :param pdf: what the PDFs of the forms show.
    """

    after: float = 3.0
    form_names: tuple[str, ...] = ("Gas Safety Record",)
    every: float = 0.0
    pdf: FormPdf = USUAL

    def accept(self, job_id: int, state: ServiceState, schedule: Schedule) -> None:
        """Schedule the work on a new job."""
        first_due = time.monotonic() + self.after
        begin_work = partial(state.update_job, job_id, {"status": "In Progress"})
        schedule.call(first_due - self.after / 2, begin_work)

        due = first_due
        for index, form_name in enumerate(self.form_names):
            due = first_due + index * self.every
            schedule.call(due, partial(state.complete_form, job_id, form_name, self.pdf))
        schedule.call(due, partial(state.complete_job, job_id))
