"""Language models as folders: where they come from, whether they can be policies, loading them, adapters, export."""
