"""Data that travels with the package: expert pools, chat templates."""
