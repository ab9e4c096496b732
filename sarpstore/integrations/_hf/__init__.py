"""The parts behind `sarpstore.integrations.transformers`, which is what users import."""
