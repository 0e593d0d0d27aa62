"""Memory, planned before anything is loaded and measured after: what a pair of models takes, and what there is."""
