# docker build -t tandem . && docker run --rm -it -v "$PWD:/data" -w /data tandem train_net --help
FROM debian:bookworm-slim
COPY . /tandem
RUN apt-get update && apt-get install -y --no-install-recommends make
RUN make -C /tandem deps install CUDA=0
RUN make -C /tandem clean
ENV PKG_CONFIG_PATH=/usr/local/lib/pkgconfig
CMD ["train_net", "--help"]
