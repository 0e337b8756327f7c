"""The scaling rules; `ropewalk.scaling` lists them."""
