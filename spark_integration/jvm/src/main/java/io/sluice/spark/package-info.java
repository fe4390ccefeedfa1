/**
 * The classes that Spark loads by name: users type them in settings (docs/guide/spark.md). They use
 * the packages below, which do not use them.
 */
package io.sluice.spark;
