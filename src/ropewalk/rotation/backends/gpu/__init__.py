"""Device code in Triton, imported only when a tensor asks for it: `import ropewalk` works without Triton."""
