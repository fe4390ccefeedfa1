/** The settings {@code spark.sluice.*}, credentials, and the settings of Spark that they change. */
package io.sluice.spark.settings;
