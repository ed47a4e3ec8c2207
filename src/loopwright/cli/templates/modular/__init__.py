"""The skeleton of a project for the modular door; this file stays here."""
