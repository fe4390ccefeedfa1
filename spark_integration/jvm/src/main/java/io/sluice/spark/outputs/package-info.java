/** Where map outputs are: Spark's tracker, replicas, moves and losses. */
package io.sluice.spark.outputs;
