"""What runs mean: numbers computed from results, without a table or a picture."""
