"""The scaling rules, one file for each family; `ropewalk.rope.scaling` gathers them."""
