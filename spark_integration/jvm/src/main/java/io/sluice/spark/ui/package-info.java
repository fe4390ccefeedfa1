/** The tab "Sluice" in the UI of a running application. */
package io.sluice.spark.ui;
