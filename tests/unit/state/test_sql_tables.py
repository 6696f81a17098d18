"""The tables of a ledger in a database, which tasks make on first use."""

from sqlalchemy import create_engine, event

from fsm_provider.state.sql_tables import check_tables


def test_tables_that_another_task_makes_at_the_same_moment_are_found(tmp_path):
    mine, others = (create_engine(f"sqlite:///{tmp_path}/ledger.db") for _ in range(2))
    missed = []

    @event.listens_for(mine, "handle_error")
    def meanwhile(context):
        missed.append(str(context.original_exception))
        check_tables(others)

    check_tables(mine)

    assert missed == ["no such table: fsm_ledger_schema"]
