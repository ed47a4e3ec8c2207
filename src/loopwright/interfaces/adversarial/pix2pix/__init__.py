"""Paired image translation: the pix2pix trainer with its networks, data, tests and exports."""
