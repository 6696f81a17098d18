"""A DAG of each kind of schedule; their tasks write what they read to the file ``READ`` names."""

import json
import os
from datetime import datetime
from pathlib import Path

from airflow.sdk import Asset, AssetAlias, dag, task
from airflow.timetables.assets import AssetOrTimeSchedule
from airflow.timetables.trigger import CronTriggerTimetable

from fsm_provider.assets.forms import completed_forms, forms_from_events

records = completed_forms("records", form_names="Gas Safety Record")
notices = completed_forms("notices", form_names=["Warning Notice"], property_id=[7, 8])
single = completed_forms("single", max_forms_per_event=1)
recent = completed_forms("recent", start_from="2026-01-01T00:00:00Z")
rates = Asset("rates")
six_o_clock = CronTriggerTimetable("0 6 * * *", timezone="UTC")


def write(value):
    with Path(os.environ["READ"]).open("a") as file:
        file.write(json.dumps(value) + "\n")


@task
def read_forms(triggering_asset_events):
    for form in forms_from_events(triggering_asset_events):
        write(form)


@task
def read_rates(triggering_asset_events):
    for event in triggering_asset_events[rates]:
        write(event.extra)


def define(dag_id, schedule, read=read_forms):
    @dag(dag_id, schedule=schedule, start_date=datetime(2026, 1, 1), catchup=False)
    def reader():
        read()

    reader()


define("on_records", [records])
define("on_both", records & notices)
define("on_either", records | notices)
define("on_records_or_time", AssetOrTimeSchedule(timetable=six_o_clock, assets=[records]))  # type: ignore[list-item]
define("on_records_or_alias", records | AssetAlias("others"))
define("on_single", single)
define("on_recent", recent)
define("on_records_and_rates", [records, rates], read=read_rates)
define("on_rates", [rates])
define("by_hand", None)


@dag(schedule=records, start_date=datetime(2026, 1, 1), catchup=False)
def mapped():
    @task
    def forms(triggering_asset_events):
        return forms_from_events(triggering_asset_events)

    task(write).expand(value=forms())


mapped()
