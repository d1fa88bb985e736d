"""A store of somebody else's, searched where it is: nothing is moved, what was calibrated lies beside it."""
