"""Find asset fields to tidy up: similar names, similar values, unused fields, and changes.

Each run takes a snapshot of the asset dynamic fields, and compares it with the last snapshot of an
earlier day. It writes ``<day>.json``, the snapshot, and ``<day>.html``, a page with a chart, into a
folder on this machine or in any object storage that Airflow knows. The task ``report`` has a link
to the page. A snapshot belongs to the day on which it is taken, even if an old run is cleared: the
service shows only the current fields. The last snapshot of a day stays.

Two texts are similar if they differ only in case, accents, spaces and punctuation, or are as alike
as ``likeness`` says. They always contain the same numbers: "Phase 1" and "Phase 2" are different.
Each text is compared with each: 1,000 values of one field take some seconds, 3,000 a minute.

Once the report is written, the run fails if there is more of something than its parameter allows.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    ObjectStoragePath,
    Param,
    dag,
    task,
)

from fsm_provider.storage import AtomicFiles

# report_page.py is beside this file, in whichever folder below Airflow's folder of DAGs.
sys.path.append(str(Path(__file__).parent))
from report_page import Chart, Headline, Page, Table, Tone, link_to_report, report_url

LABELS = {
    "similar_names": "similar names",
    "unused": "unused fields",
    "similar_values": "similar values",
}
"""What the page calls each kind of finding."""
TONES: dict[str, Tone] = {
    "similar names": "bad",
    "unused fields": "unknown",
    "similar values": "notice",
}
"""The colour of each label."""
BARS = 15
"""Number of fields in the chart."""
SNAPSHOT = ".json"
IGNORED = "CMPZ"
"""First letters of Unicode's categories: control characters, accents, punctuation, spaces."""
PLACES = ("assetTypeDescription", "assetGroupDescription", "scope", "fieldKey")
"""What may say where a field is used, the clearest first."""

Field = dict[str, Any]


class Finding(NamedTuple):
    """A problem with the names of fields, or with the values of one field.

    ``field`` is None if the problem is with names; ``texts`` are these names or values.
    """

    kind: str
    field: Field | None
    texts: list[str]

    def row(self) -> list[str]:
        """Return the row for the page."""
        field_name = name_for(self.field) if self.field else ""
        return [LABELS[self.kind], field_name, " · ".join(self.texts)]


class Spelling(NamedTuple):
    """A text, and what of it is compared."""

    text: str
    letters: str
    numbers: list[str]


def letters_in(text: str) -> str:
    """Return a text without case, accents, spaces and punctuation."""
    # NFKD makes two characters of an accented letter: the letter, and its accent.
    decomposed = unicodedata.normalize("NFKD", text.casefold())
    letters = []
    for character in decomposed:
        category = unicodedata.category(character)
        if category[0] not in IGNORED:
            letters.append(character)
    return "".join(letters)


def numbers_in(text: str) -> list[str]:
    return re.findall(r"\d+(?:[.,]\d+)*", text)


def groups_alike(texts: Iterable[str], likeness: float) -> list[list[str]]:
    """Return each group of two or more similar texts; a text like two groups joins them."""
    groups: list[list[Spelling]] = []
    matcher = SequenceMatcher(autojunk=False)
    for text in texts:
        spelling = Spelling(text, letters_in(text), numbers_in(text))
        # The matcher prepares its second text, which takes long: once for all comparisons.
        matcher.set_seq2(spelling.letters)
        joined: list[Spelling] = []
        others: list[list[Spelling]] = []
        for group in groups:
            if any(is_similar(spelling, known, matcher, likeness) for known in group):
                joined.extend(group)
            else:
                others.append(group)
        joined.append(spelling)
        groups = [*others, joined]

    similar = []
    for group in groups:
        group_texts = [spelling.text for spelling in group]
        if len(group_texts) > 1:
            similar.append(group_texts)
    return similar


def is_similar(
    spelling: Spelling, known: Spelling, matcher: SequenceMatcher[str], likeness: float
) -> bool:
    """Compare two spellings; the matcher already has the first one's letters."""
    if spelling.numbers != known.numbers:
        return False
    matcher.set_seq1(known.letters)
    # The quick ratios are never below the exact one, and spare most texts the slow comparison.
    if matcher.real_quick_ratio() < likeness:
        return False
    if matcher.quick_ratio() < likeness:
        return False
    return matcher.ratio() >= likeness


def name_for(field: Field) -> str:
    return field["dynamicFieldName"] or f"(field {field['dynamicFieldID']} has no name)"


def values_for(field: Field) -> list[str]:
    texts = []
    for value in field["values"] or []:
        text = text_for(value)
        if text:
            texts.append(text)
    return texts


def findings_for(fields: list[Field], likeness: float) -> list[Finding]:
    """Return all findings, kind by kind."""
    findings = []

    for group in groups_alike(map(name_for, fields), likeness):
        similar_names = Finding("similar_names", None, group)
        findings.append(similar_names)

    for field in fields:
        if field["usedBy"]:
            continue
        unused = Finding("unused", None, [name_for(field)])
        findings.append(unused)

    for field in fields:
        for group in groups_alike(values_for(field), likeness):
            similar_values = Finding("similar_values", field, group)
            findings.append(similar_values)

    return findings


def count_by_kind(findings: Iterable[Finding]) -> dict[str, int]:
    """Count the fields and values with findings."""
    counts = dict.fromkeys(LABELS, 0)
    for finding in findings:
        counts[finding.kind] += len(finding.texts)
    return counts


def changes_between(before: list[Field], after: list[Field]) -> list[list[str]]:
    """Return the changes, matched by identifiers, as rows: change, field, before, now."""
    changes = []
    for old, new in pairs(before, after, "dynamicFieldID"):
        if old is None:
            changes.append(["field added", name_for(new), "", ""])
        elif new is None:
            changes.append(["field removed", name_for(old), "", ""])
        else:
            changes.extend(changes_in_field(old, new))
    return changes


def changes_in_field(old: Field, new: Field) -> list[list[str]]:
    """Return the changes of a field that is in both snapshots."""
    changes = []
    name = name_for(new)
    old_name = name_for(old)
    if old_name != name:
        changes.append(["field renamed", name, old_name, name])

    old_places = places(old)
    new_places = places(new)
    if old_places != new_places:
        changes.append(["use changed", name, old_places, new_places])

    for old_value, new_value in pairs(old["values"] or [], new["values"] or [], "id"):
        old_text = text_for(old_value)
        new_text = text_for(new_value)
        if old_text != new_text:
            changes.append([value_change(old_text, new_text), name, old_text, new_text])
    return changes


def pairs(before: list[dict], after: list[dict], key: str) -> list[tuple[dict | None, dict | None]]:
    """Pair records by key; a record without a counterpart is paired with None."""
    paired: dict[Any, tuple[dict | None, dict | None]] = {}
    for record in before:
        paired[record[key]] = (record, None)
    for record in after:
        old, _ = paired.get(record[key], (None, None))
        paired[record[key]] = (old, record)
    return list(paired.values())


def places(field: Field) -> str:
    """Describe where a field is used."""
    descriptions = {place_for(use) for use in field["usedBy"] or []}
    return ", ".join(sorted(descriptions))


def place_for(use: dict) -> str:
    for name in PLACES:
        description = use.get(name)
        if description:
            return description
    return ""


def text_for(value: dict | None) -> str:
    """Return the text of a value; it is empty if there is no value."""
    if value is None:
        return ""
    return value.get("name") or ""


def value_change(old_text: str, new_text: str) -> str:
    if old_text and new_text:
        return "value renamed"
    return "value added" if new_text else "value removed"


def page_for(
    fields: list[Field], findings: list[Finding], changes: list[list[str]], about: str
) -> Page:
    """Make the page of findings and changes."""
    headlines = [Headline(len(fields), "fields")]
    counts = count_by_kind(findings)
    for kind, label in LABELS.items():
        headline = Headline(counts[kind], label, TONES[label])
        headlines.append(headline)

    findings_table = Table(
        title="What to look at",
        columns=("Finding", "Field", "Which"),
        rows=[finding.row() for finding in findings],
        none="Nothing was found.",
        tones=TONES,
    )
    changes_table = Table(
        title="What has changed",
        columns=("Change", "Field", "Before", "Now"),
        rows=changes,
        none="Nothing.",
    )
    return Page(
        title="Asset fields",
        about=about,
        headlines=headlines,
        chart=chart_for(fields, findings),
        tables=[findings_table, changes_table],
    )


def chart_for(fields: list[Field], findings: list[Finding]) -> Chart:
    """Show the fields with most similar values, then those with most values."""
    bars = []
    for field in fields:
        similar = count_similar_values(field, findings)
        others = len(values_for(field)) - similar
        bars.append((name_for(field), (similar, others)))
    bars.sort(key=lambda bar: bar[1], reverse=True)

    title = "Values by field"
    if len(bars) > BARS:
        title += f", the {BARS} with most to look at"
    return Chart(
        title=title,
        series={"similar": "notice", "others": "plain"},
        bars=bars[:BARS],
    )


def count_similar_values(field: Field, findings: list[Finding]) -> int:
    count = 0
    for finding in findings:
        if finding.field is field:
            count += len(finding.texts)
    return count


def path_for(location: str) -> ObjectStoragePath:
    """Parse a path or URI; a relative path starts at this file's folder."""
    if "://" in location:
        return ObjectStoragePath(location)
    return ObjectStoragePath(str(Path(__file__).parent / location))


def read_snapshot(folder: ObjectStoragePath, day: str) -> list[Field]:
    text = (folder / f"{day}{SNAPSHOT}").read_text(encoding="utf-8")
    fields: list[Field] = json.loads(text)
    return fields


def day_before(folder: ObjectStoragePath, day: str) -> str | None:
    """Return the day of the last snapshot before ``day``; None if there is no such snapshot."""
    earlier_days = []
    for path in folder.glob(f"*{SNAPSHOT}"):
        snapshot_day = path.name.removesuffix(SNAPSHOT)
        if snapshot_day < day:
            earlier_days.append(snapshot_day)
    return max(earlier_days, default=None)


@dag(
    schedule="@daily",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    default_args={"retries": 2},
    tags=["fsm", "example"],
    params={
        "folder": Param(
            "data/asset_fields",
            type="string",
            minLength=1,
            title="Folder of the reports",
        ),
        "served_at": Param(
            "",
            type="string",
            pattern="^(https?://.+)?$",
            title="URL of that folder, for the link",
        ),
        "likeness": Param(
            0.9,
            type="number",
            minimum=0.5,
            maximum=1,
            title="How alike is similar",
        ),
        "max_similar_names": Param(0, type="integer", minimum=0, title="Most similar names"),
        "max_unused": Param(20, type="integer", minimum=0, title="Most unused fields"),
        "max_similar_values": Param(20, type="integer", minimum=0, title="Most similar values"),
    },
)
def asset_field_quality():
    @task
    def take_snapshot(params, **context):
        """Write the current fields to a file, and return their day."""
        from fsm_provider.hooks.fsm import FsmHook

        fields = [field.as_json() for field in FsmHook().list_asset_dynamic_fields()]
        text = json.dumps(fields, ensure_ascii=False, indent=1)
        day = str(datetime.now(UTC).date())
        # The file is complete or not there: a run that is stopped leaves no half of a snapshot.
        with AtomicFiles(path_for(params["folder"]), context) as files:
            files.store(f"{day}{SNAPSHOT}", [text.encode()])
        print(f"{len(fields)} fields on {day}")
        return day

    @task
    def report(day, params):
        """Write the page, and return the counts and the page's URL."""
        folder = path_for(params["folder"])
        fields = read_snapshot(folder, day)
        findings = findings_for(fields, params["likeness"])

        earlier_day = day_before(folder, day)
        if earlier_day is None:
            changes = []
            about = f"As of {day}, compared with nothing: it is the first snapshot."
        else:
            changes = changes_between(read_snapshot(folder, earlier_day), fields)
            about = f"As of {day}, compared with {earlier_day}."

        page = folder / f"{day}.html"
        page_for(fields, findings, changes, about).write(page)
        for finding in findings:
            print(" | ".join(finding.row()))
        for change in changes:
            print(" | ".join(change))
        return {
            "counts": count_by_kind(findings),
            "changes": len(changes),
            "page": report_url(page, params["served_at"]),
        }

    @task
    def check(reported, params):
        """Fail if a count is above its limit."""
        too_many = []
        for kind, count in reported["counts"].items():
            limit = params[f"max_{kind}"]
            if count > limit:
                too_many.append(f"{count} {LABELS[kind]}, and max_{kind} is {limit}")
        if too_many:
            raise AirflowFailException(f"{'; '.join(too_many)}: see {reported['page']}")

    day = take_snapshot()
    reported = report(day)
    link_to_report(reported)
    check(reported)


asset_field_quality()
