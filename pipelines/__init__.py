"""One module per job: options, build(pipeline, options, ports), main."""
