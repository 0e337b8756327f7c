"""Does a model use far tokens? The copy test and the exchange test, each with a control within the trained length."""
