"""Fake providers: real servers on loopback that write down what reached them and can fail in every way."""
