"""What other people's clients speak, one file for questions and one for answers of each."""
