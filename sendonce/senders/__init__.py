"""Ways out: one module per provider adapter, all behind `base.Sender`."""
