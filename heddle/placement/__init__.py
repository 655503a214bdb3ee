"""Where: which worker a trajectory lives on."""
