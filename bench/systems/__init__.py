"""The systems that are measured: ours, and the peers. A system is one file behind `base.System`."""
