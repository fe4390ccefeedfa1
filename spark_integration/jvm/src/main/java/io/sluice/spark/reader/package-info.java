/** Reads stored map outputs as records, and reports lost outputs to Spark. */
package io.sluice.spark.reader;
