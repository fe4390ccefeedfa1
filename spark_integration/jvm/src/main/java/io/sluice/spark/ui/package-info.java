/** The tab "Sluice" in the UI of a running application, and in the history server. */
package io.sluice.spark.ui;
