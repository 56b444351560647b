"""A file of inputs becomes a file of results: checked first, bounded, resumable.

Input and output are JSON lines, in prefillq's own words or in another's (`formats`). Each result is
one line that says which line of the input it is of (its `index`, counted from 0), its `id` and the
batch's name, in the order in which jobs end. The batch's name is made of the input's bytes and of
what was asked for it; it stands in every line of the output, so that a later run knows, without any
other file, whether the output is its own and what is left to do. Idempotency keys are made of it
too: a job enqueued by an interrupted run is found again, never enqueued twice.

    lines    what an input says          results  the output, and what it holds already
    formats  how both are spelled        flight   jobs in flight, from submit to result
    seen     names and indexes           jobs     where they go: a real `Producer`
    files    input and output, opened    shown    bad lines, progress, summary
    dry_run  tokens                      command  `prefillq batch`
"""
