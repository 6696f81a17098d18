"""Find asset fields to tidy up: similar names, similar values, unused fields, and changes.

Each run takes a snapshot of the asset dynamic fields, and compares it with the last one of an
earlier day. It writes ``<day>.json``, the snapshot, and ``<day>.html``, a page with a chart, into a
folder on this machine or in any object storage that Airflow knows. The task ``report`` has a link
to the page. A snapshot belongs to the day on which it is taken, even if an old run is cleared: the
service shows only the current fields. The last snapshot of a day stays.

Two texts are similar if they differ only in case, accents, spaces and punctuation, or are as alike
as ``likeness`` says. They always contain the same numbers: "Phase 1" and "Phase 2" are different.
Each text is compared with each: 1,000 values of one field take some seconds, 3,000 a minute.

The run fails if there is more of something than its parameter allows, after it has written the
report.
"""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from difflib import SequenceMatcher
from itertools import chain
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

sys.path.append(str(Path(__file__).parent))  # wherever in the folder of DAGs it is
from report_page import Chart, Headline, Page, Table, Tone, link_to_report, report_url

KINDS: dict[str, tuple[str, Tone]] = {
    "similar_names": ("similar names", "bad"),
    "unused": ("unused fields", "unknown"),
    "similar_values": ("similar values", "notice"),
}
"""Label and tone on the page of each kind of finding."""
BARS = 15
"""Number of fields in the chart."""
SNAPSHOT = ".json"

Field = dict[str, Any]


class Finding(NamedTuple):
    """A problem with these names of fields, or with these values of one field."""

    kind: str
    field: Field | None
    texts: list[str]

    def row(self) -> list[str]:
        """Return the row for the page."""
        label, _ = KINDS[self.kind]
        return [label, name_for(self.field) if self.field else "", " · ".join(self.texts)]


def bare(text: str) -> str:
    """Remove case, accents, spaces and punctuation."""
    letters = unicodedata.normalize("NFKD", text.casefold())
    return "".join(letter for letter in letters if unicodedata.category(letter)[0] not in "CMPZ")


def numbers_in(text: str) -> list[str]:
    return re.findall(r"\d+(?:[.,]\d+)*", text)


def groups_alike(texts: Iterable[str], likeness: float) -> list[list[str]]:
    """Return each group of two or more similar texts."""
    groups: list[list[tuple[str, str, list[str]]]] = []
    matcher = SequenceMatcher(autojunk=False)
    for text in texts:
        letters, numbers = bare(text), numbers_in(text)
        matcher.set_seq2(letters)
        near = [
            group
            for group in groups
            if any(known[2] == numbers and is_like(matcher, known[1], likeness) for known in group)
        ]
        groups = [group for group in groups if group not in near]
        groups.append([*chain.from_iterable(near), (text, letters, numbers)])
    return [[text for text, _, _ in group] for group in groups if len(group) > 1]


def is_like(matcher: SequenceMatcher[str], letters: str, likeness: float) -> bool:
    """Compare a text with the matcher's, cheapest check first."""
    matcher.set_seq1(letters)
    return all(
        ratio() >= likeness
        for ratio in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio)
    )


def name_for(field: Field) -> str:
    return field["dynamicFieldName"] or f"(field {field['dynamicFieldID']} has no name)"


def values_for(field: Field) -> list[str]:
    return [value["name"] for value in field["values"] or [] if value["name"]]


def findings_for(fields: list[Field], likeness: float) -> list[Finding]:
    """Return all findings, kind by kind."""
    names = [
        Finding("similar_names", None, group)
        for group in groups_alike(map(name_for, fields), likeness)
    ]
    unused = [Finding("unused", None, [name_for(field)]) for field in fields if not field["usedBy"]]
    values = [
        Finding("similar_values", field, group)
        for field in fields
        for group in groups_alike(values_for(field), likeness)
    ]
    return names + unused + values


def count_by_kind(findings: Iterable[Finding]) -> dict[str, int]:
    """Count the fields and values with findings."""
    counts = dict.fromkeys(KINDS, 0)
    for finding in findings:
        counts[finding.kind] += len(finding.texts)
    return counts


def changes_between(before: list[Field], after: list[Field]) -> list[list[str]]:
    """Return the changes, matched by identifiers, as rows: what, field, before, after."""
    changes = []
    for old, new in pairs(before, after, "dynamicFieldID"):
        name = name_for(new or old)
        if not (old and new):
            changes.append(["field added" if new else "field removed", name, "", ""])
            continue
        if name_for(old) != name:
            changes.append(["field renamed", name, name_for(old), name])
        if places(old) != places(new):
            changes.append(["use changed", name, places(old), places(new)])
        for old_value, new_value in pairs(old["values"] or [], new["values"] or [], "id"):
            was, now = ((value or {}).get("name") or "" for value in (old_value, new_value))
            if was != now:
                what = "renamed" if was and now else "added" if now else "removed"
                changes.append([f"value {what}", name, was, now])
    return changes


def pairs(
    before: list[dict], after: list[dict], key: str
) -> Iterable[tuple[dict | None, dict | None]]:
    """Pair records by key; one without a counterpart is paired with None."""
    old, new = ({record[key]: record for record in records} for records in (before, after))
    return ((old.get(number), new.get(number)) for number in {**old, **new})


def places(field: Field) -> str:
    """Describe where a field is used."""
    descriptions = ("assetTypeDescription", "assetGroupDescription", "scope", "fieldKey")
    uses = field["usedBy"] or []
    return ", ".join(sorted({next(filter(None, map(use.get, descriptions)), "") for use in uses}))


def page_for(
    fields: list[Field], findings: list[Finding], changes: list[list[str]], about: str
) -> Page:
    """Make the page of findings and changes."""
    counts = count_by_kind(findings)
    return Page(
        title="Asset fields",
        about=about,
        headlines=[
            Headline(len(fields), "fields"),
            *(Headline(counts[kind], label, tone) for kind, (label, tone) in KINDS.items()),
        ],
        chart=chart_for(fields, findings),
        tables=[
            Table(
                title="What to look at",
                columns=("Finding", "Field", "Which"),
                rows=[finding.row() for finding in findings],
                none="Nothing was found.",
                tones=dict(KINDS.values()),
            ),
            Table(
                title="What has changed",
                columns=("Change", "Field", "Before", "Now"),
                rows=changes,
                none="Nothing.",
            ),
        ],
    )


def chart_for(fields: list[Field], findings: list[Finding]) -> Chart:
    """Show the fields with most similar values, then those with most values."""
    bars = []
    for field in fields:
        about_it = [finding for finding in findings if finding.field is field]
        similar = count_by_kind(about_it)["similar_values"]
        bars.append((name_for(field), (similar, len(values_for(field)) - similar)))
    bars.sort(key=lambda bar: bar[1], reverse=True)
    most = f", the {BARS} with most to look at" if len(bars) > BARS else ""
    return Chart(
        title=f"Values by field{most}",
        series={"similar": "notice", "others": "plain"},
        bars=bars[:BARS],
    )


def path_for(given: str) -> ObjectStoragePath:
    """Parse a path or URI; a relative path starts at this file's folder."""
    return ObjectStoragePath(given if "://" in given else str(Path(__file__).parent / given))


def read_snapshot(folder: ObjectStoragePath, day: str) -> list[Field]:
    fields: list[Field] = json.loads((folder / f"{day}{SNAPSHOT}").read_text(encoding="utf-8"))
    return fields


def day_before(folder: ObjectStoragePath, day: str) -> str | None:
    """Return the day of the last snapshot before ``day``."""
    days = [path.name.removesuffix(SNAPSHOT) for path in folder.glob(f"*{SNAPSHOT}")]
    return max((other for other in days if other < day), default=None)


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
            "data/asset_fields", type="string", minLength=1, title="Folder of the reports"
        ),
        "served_at": Param(
            "", type="string", pattern="^(https?://.+)?$", title="URL of that folder, for the link"
        ),
        "likeness": Param(0.9, type="number", minimum=0.5, maximum=1, title="How alike is similar"),
        **{
            f"max_{kind}": Param(most, type="integer", minimum=0, title=f"Most {KINDS[kind][0]}")
            for kind, most in {"similar_names": 0, "unused": 20, "similar_values": 20}.items()
        },
    },
)
def asset_field_quality():
    @task
    def take_snapshot(params, **context):
        """Write the current fields to an atomic file."""
        from fsm_provider.hooks.fsm import FsmHook

        fields = [field.as_json() for field in FsmHook().list_asset_dynamic_fields()]
        day = str(datetime.now(UTC).date())
        with AtomicFiles(path_for(params["folder"]), context) as files:
            files.store(
                f"{day}{SNAPSHOT}", [json.dumps(fields, ensure_ascii=False, indent=1).encode()]
            )
        print(f"{len(fields)} fields on {day}")
        return day

    @task
    def report(day, params):
        """Write the page."""
        folder = path_for(params["folder"])
        fields, before = read_snapshot(folder, day), day_before(folder, day)
        findings = findings_for(fields, params["likeness"])
        changes = changes_between(read_snapshot(folder, before), fields) if before else []
        about = f"As of {day}, compared with {before or 'nothing: it is the first snapshot'}."
        page = folder / f"{day}.html"
        page_for(fields, findings, changes, about).write(page)
        for line in (*(finding.row() for finding in findings), *changes):
            print(" | ".join(line))
        return {
            "counts": count_by_kind(findings),
            "changes": len(changes),
            "page": report_url(page, params["served_at"]),
        }

    @task
    def check(reported, params):
        """Fail if a count is above its limit."""
        too_many = [
            f"{count} {KINDS[kind][0]}, and max_{kind} is {params[f'max_{kind}']}"
            for kind, count in reported["counts"].items()
            if count > params[f"max_{kind}"]
        ]
        if too_many:
            raise AirflowFailException(f"{'; '.join(too_many)}: see {reported['page']}")

    reported = report(take_snapshot())
    link_to_report(reported)
    check(reported)


asset_field_quality()
