"""A YARN cluster for the tests on YARN (`make yarn-test`)."""
