/** The runtime of an executor, which its tasks share. */
package io.sluice.spark.executor;
