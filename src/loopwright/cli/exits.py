"""The exit codes of all commands, and the paragraph of `--help` that documents them."""

OK = 0
FOUND = 1
FAILED = 2
INTERRUPTED = 130
PIPE_CLOSED = 141

EXIT_CODES = """\
exit codes: 0 done and all well; 1 done, and the answer is no (each command says what that means);
2 not done, the reason is on stderr; 130 interrupted (Ctrl-C); 141 the reader of the output went away;
143 ended by SIGTERM (130 and 143 of `train`: saved, and the same command continues)"""
