//! Undoes a content coding that the upstream used against our asking (F5).
//!
//! Called by the pump once per chunk of an encoded body. Touches only its own buffers.

use bytes::Bytes;
use std::io::{self, Write};

/// Bound of what one encoded chunk may become, so that a small bomb cannot fill the memory. A
/// read is at most 64 KiB, and text does not compress a thousandfold.
const MAX_EXPANSION_BYTES: usize = 64 * 1024 * 1024;

/// Whether a body is plain, decodable, or neither.
#[derive(Debug)]
pub enum Coding {
    /// Nothing to do.
    Identity,
    /// Decoded on the way.
    Decoded(Box<Decoder>),
    /// Passes raw, unread (F5).
    Unknown,
}

impl Coding {
    /// From the value of `content-encoding`.
    #[must_use]
    pub fn of(value: Option<&str>) -> Self {
        let Some(value) = value else { return Self::Identity };
        match value.trim().to_ascii_lowercase().as_str() {
            "" | "identity" => Self::Identity,
            "gzip" | "x-gzip" => decoded(Decoder::Gzip(flate2::write::MultiGzDecoder::new(Vec::new()))),
            "deflate" => decoded(Decoder::Deflate(flate2::write::ZlibDecoder::new(Vec::new()))),
            "br" => decoded(Decoder::Brotli(brotli::DecompressorWriter::new(Vec::new(), 4096))),
            "zstd" => zstd::stream::write::Decoder::new(Vec::new())
                .map_or(Self::Unknown, |decoder| decoded(Decoder::Zstd(decoder))),
            _ => Self::Unknown,
        }
    }
}

fn decoded(decoder: Decoder) -> Coding {
    Coding::Decoded(Box::new(decoder))
}

/// A decoder that is fed piece by piece.
#[expect(clippy::large_enum_variant, reason = "always boxed")]
pub enum Decoder {
    /// RFC 1952.
    Gzip(flate2::write::MultiGzDecoder<Vec<u8>>),
    /// RFC 1950, which HTTP calls deflate.
    Deflate(flate2::write::ZlibDecoder<Vec<u8>>),
    /// RFC 7932.
    Brotli(brotli::DecompressorWriter<Vec<u8>>),
    /// RFC 8878.
    Zstd(zstd::stream::write::Decoder<'static, Vec<u8>>),
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Gzip(_) => "Gzip",
            Self::Deflate(_) => "Deflate",
            Self::Brotli(_) => "Brotli",
            Self::Zstd(_) => "Zstd",
        })
    }
}

impl Decoder {
    /// What `chunk` decodes to so far: everything that the sender has flushed (B251).
    ///
    /// # Errors
    /// When the bytes are not of this coding, or decode to more than 64 MiB.
    pub fn push(&mut self, chunk: &[u8]) -> io::Result<Bytes> {
        match self {
            Self::Gzip(decoder) => step(decoder, chunk, |decoder| decoder.get_mut()),
            Self::Deflate(decoder) => step(decoder, chunk, |decoder| decoder.get_mut()),
            Self::Brotli(decoder) => step(decoder, chunk, |decoder| decoder.get_mut()),
            Self::Zstd(decoder) => step(decoder, chunk, |decoder| decoder.get_mut()),
        }
    }

    /// The end of the body.
    ///
    /// # Errors
    /// When the coded data is cut short.
    pub fn end(self) -> io::Result<Bytes> {
        match self {
            Self::Gzip(decoder) => decoder.finish().map(Bytes::from),
            Self::Deflate(decoder) => decoder.finish().map(Bytes::from),
            Self::Brotli(mut decoder) => {
                decoder.close()?;
                Ok(Bytes::from(std::mem::take(decoder.get_mut())))
            }
            Self::Zstd(mut decoder) => {
                decoder.flush()?;
                Ok(Bytes::from(std::mem::take(decoder.get_mut())))
            }
        }
    }
}

fn step<D: Write>(decoder: &mut D, chunk: &[u8], out: impl Fn(&mut D) -> &mut Vec<u8>) -> io::Result<Bytes> {
    const STEP_BYTES: usize = 4096;
    for part in chunk.chunks(STEP_BYTES) {
        decoder.write_all(part)?;
        if out(decoder).len() > MAX_EXPANSION_BYTES {
            return Err(io::Error::other("decodes to more than Weir holds"));
        }
    }
    decoder.flush()?;
    Ok(Bytes::from(std::mem::take(out(decoder))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(coding: &str, text: &[u8]) -> Vec<u8> {
        match coding {
            "gzip" => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(text).unwrap();
                encoder.flush().unwrap();
                encoder.finish().unwrap()
            }
            "deflate" => {
                let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            "br" => {
                let mut out = Vec::new();
                brotli::BrotliCompress(&mut &text[..], &mut out, &brotli::enc::BrotliEncoderParams::default()).unwrap();
                out
            }
            _ => zstd::encode_all(text, 3).unwrap(),
        }
    }

    #[test]
    fn f5_every_coding_decodes_one_byte_at_a_time() {
        let text = b"data: {\"choices\":[]}\n\n".repeat(50);
        for coding in ["gzip", "deflate", "br", "zstd"] {
            let Coding::Decoded(mut decoder) = Coding::of(Some(coding)) else { panic!("{coding}") };
            let mut plain = Vec::new();
            for byte in encoded(coding, &text) {
                plain.extend_from_slice(&decoder.push(&[byte]).unwrap());
            }
            plain.extend_from_slice(&decoder.end().unwrap());
            assert_eq!(plain, text, "{coding}");
        }
    }

    #[test]
    fn f5_a_flushed_event_is_there_at_once() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(b"data: 1\n\n").unwrap();
        encoder.flush().unwrap();
        let Coding::Decoded(mut decoder) = Coding::of(Some("gzip")) else { panic!() };
        assert_eq!(decoder.push(encoder.get_ref()).unwrap(), "data: 1\n\n");
    }

    #[test]
    fn f5_cut_gzip_is_an_error_not_an_end() {
        let whole = encoded("gzip", b"data: 1\n\n");
        let Coding::Decoded(mut decoder) = Coding::of(Some("gzip")) else { panic!() };
        decoder.push(&whole[..whole.len() - 4]).unwrap();
        assert!(decoder.end().is_err());
    }

    #[test]
    fn f5_garbage_is_an_error() {
        let Coding::Decoded(mut decoder) = Coding::of(Some("gzip")) else { panic!() };
        assert!(decoder.push(b"data: plain text\n\n").is_err());
        assert!(matches!(Coding::of(Some("foo")), Coding::Unknown));
    }
}
