"""The doctor: does a model use text beyond its trained length, and what makes it?"""
