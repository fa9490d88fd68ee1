//! The one way from a request to its answer: exchanges, errands, streams and the end of a session all take it.

use super::Shared;
use super::download::Download;
use super::fault::Fault;
use super::upload::Upload;
use http::{Request, Response};

impl Shared {
    /// Sends what `make` gives and waits for the head of the answer, of whatever status.
    ///
    /// `make` is called again where the request has to be sent once more. Dropping the future gives the request up.
    ///
    /// # Errors
    ///
    /// No answer came; [`Fault::ended`] tells what that means for an exchange.
    pub(super) async fn fetch(
        &self,
        make: impl Fn() -> Result<Request<Upload>, String>,
    ) -> Result<Response<Download>, Fault> {
        let request = make().map_err(Fault::Request)?;
        let answer = self.pool.request(request).await.map_err(Fault::Client)?;
        Ok(answer.map(Download::new))
    }
}
