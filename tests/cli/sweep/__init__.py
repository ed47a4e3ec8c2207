"""Tests of `loopwright sweep`."""
