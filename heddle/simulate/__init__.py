"""The simulator: the control plane that runs live, driven in virtual time by a discrete-event world."""
