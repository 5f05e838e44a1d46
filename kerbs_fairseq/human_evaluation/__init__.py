"""Human evaluation: blinded rating sheets and what they say."""
