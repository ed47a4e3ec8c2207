"""The skeleton of a project for the adversarial door; this file stays here."""
