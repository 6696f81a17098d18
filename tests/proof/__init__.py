"""What can be shown in a minute of promises that no example shows: ``make prove``.

:mod:`tests.proof.lines` has the methods, each line of which runs by itself and is named by what it
needs: a scenario, a condition, or a seed. :mod:`tests.proof.report` chooses, runs and prints them.
"""
