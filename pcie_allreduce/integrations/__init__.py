"""Adapters for inference engines. Engines are imported here alone, and nothing here by the rest of the package."""
