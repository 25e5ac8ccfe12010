"""Which definitions of a project its programs come to: what each one names (`names`), and one walk from what is
started (`walk`)."""
