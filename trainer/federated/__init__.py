"""Several boxes train one adapter (docs/federated.md)."""
