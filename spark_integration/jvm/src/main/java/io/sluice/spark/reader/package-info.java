/** Reads stored map outputs as records, and tells Spark which outputs are lost. */
package io.sluice.spark.reader;
