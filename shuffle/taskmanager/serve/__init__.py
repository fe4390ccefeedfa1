"""The legs of the exchange: what a TaskManager says on producer, peer, consumer and driver legs."""
