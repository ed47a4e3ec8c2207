"""What `loopwright init` copies: a folder for each door, whose programs are checked like the rest of the package."""
