"""Inside one forward pass: what each layer would predict, every stage of the computation, the steps of a universal block."""
