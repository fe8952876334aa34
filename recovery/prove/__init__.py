"""`tiered prove`: tries on the user's own services what the store rests on, before the first byte is at stake.

    trial.py       begin here: a store of its own beside that of the settings, for a while, and its end
    probes/        the tables of what is tried: one row for each assumption of docs/protocol.md
    kills.py       writers that are killed, recovered and judged
        writer.py      what their processes run, and that of recovery
        judge.py       what may be seen of an object, by what callers were told; the demo judges by it, too
        looks.py       what the writers have left, read through the adapters
    contracts.py   the contract suites, in a process of their own
        contract_plugin.py     the fixtures in that process
        contract_losses.py     what is lost where one of their tests fails
    report.py      what was found, as JSON and as text; and the sentence at its end
    page.py        the same as a page
    hiding.py      takes out of a report what names something of the user's
    prices.py      what a call costs
    plan.py        what a run would do
    run.py         all of it, in order
"""
