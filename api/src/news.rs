//! Who waits for records hears of those that come in here, and of those that another process of the API has stored.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::problem::chain;
use crate::store::News;

/// Others are told at most so often.
const GATHER: Duration = Duration::from_millis(50);

/// Passes on what was `stored` here to `told` and to the other processes, and what they tell to `told`, until `stop`.
pub(crate) async fn pass_on(
    app: Arc<App>,
    mut stored: watch::Receiver<()>,
    told: watch::Sender<()>,
    stop: CancellationToken,
) {
    // A host that has its database for itself has nobody to tell, and nobody to hear.
    let alone = app.upkeep.is_some();
    let mut heard = if alone { Box::pin(tokio_stream::pending()) } else { app.records.hear() };
    let mut others = tokio::time::interval(GATHER);
    others.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut untold = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            // Fails once nothing is stored any more, which is when all of this ends.
            changed = stored.changed() => {
                if changed.is_err() {
                    return;
                }
                told.send_replace(());
                untold = !alone;
            }
            Some(news) = heard.next() => match news {
                News::Stored => told.send_replace(()),
                News::Cancel(id) => {
                    app.runs.cancel(id);
                }
            },
            _ = others.tick(), if untold => {
                untold = false;
                if let Err(error) = app.records.tell(News::Stored).await {
                    // They look by themselves, only later.
                    tracing::debug!(error = %chain(&error), "failed to tell other processes of new records");
                }
            }
        }
    }
}
